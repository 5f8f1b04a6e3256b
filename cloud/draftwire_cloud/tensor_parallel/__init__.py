"""One target split over several devices: rank 0 serves and plans, the others compute along.

Every rank holds its part of the weights and of each session's keys and values (`Target` with ``ranks``), in
the same rows of its arena. Rank 0 announces each forward pass as a `Step`: what it moved since the last one,
and which tokens go to which rows. The others repeat it and meet rank 0 in the sums inside the model.
"""
