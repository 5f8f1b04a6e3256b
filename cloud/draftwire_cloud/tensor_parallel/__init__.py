"""One target split over several devices: rank 0 serves and plans, the others compute along.

Every rank holds its part of the weights and of each session's keys and values (`Target` with ``ranks``).
Rank 0 announces each forward pass as a `Step`; the others repeat it on slots of their own and meet rank 0
in the sums inside the model.
"""
