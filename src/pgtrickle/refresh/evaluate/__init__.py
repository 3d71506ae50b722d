"""Who evaluates the flows of a physical plan, and the stages that their rows go through."""
