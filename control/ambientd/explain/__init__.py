"""Answers about what is served and why, made of the index alone. Pure; must not change or fetch anything, and must not
know how an answer is shown."""
