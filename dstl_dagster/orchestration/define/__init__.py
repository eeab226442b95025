"""How work is defined: assets, ops, jobs, the IO manager. Owns what a program may say, and its claims."""
