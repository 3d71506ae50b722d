"""`python -m pgtrickle.demo`: a small shop with live writes and stream tables that follow them, checked at the end."""
