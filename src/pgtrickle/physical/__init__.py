"""The planner: from a delta plan or an operator tree to flows of rows, and stages. Knows neither Spark nor connections.

lower_delta.py  a delta plan          table_facts.py  what reads cost        flow.py       the plan, as values
lower_full.py   a full refresh        estimate.py     how large deltas are   flow_sql.py   its flows, as SQL over names
                                                                             flow_text.py  the plan, as text
"""
