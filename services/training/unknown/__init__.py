"""Training of the closed-domain recogniser's sense of what it does not know.

`fit.txt` holds sentences that no library has, to fit on; `judge.txt` holds others, to judge by
(`tests/play/test_out_of_domain.py`). The voices of both differ, too.
"""
