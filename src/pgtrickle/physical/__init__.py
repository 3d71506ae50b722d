"""The planner: from a delta plan or an operator tree to flows of rows, and stages. Knows neither Spark nor connections.

lower.py    a delta plan            facts.py    what reads cost            flow.py     the plan, as values
full.py     a full refresh          estimate.py how large deltas are       explain.py  the plan, as text
"""
