"""Training of the project's own small models; torch is needed here and nowhere else."""

import turngap  # noqa: F401 (its first import switches off what libraries would report)
