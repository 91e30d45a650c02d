"""How the project's own small models are made; torch is needed here and nowhere else."""
