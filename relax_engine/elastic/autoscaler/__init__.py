"""How many engines a run should have, decided from what the engines report about their load."""
