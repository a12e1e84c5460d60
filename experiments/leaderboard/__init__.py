"""A leaderboard of plans and policies: entries are data and never code, and are compiled, checked and timed here.

snapshot.py      the files of an untrusted folder, read once
entry.py         the folder of an entry, checked before anything in it is used
writing.py       entries from policies and plans
verification.py  an entry beside the default plan, program by program, by the measurer of the environments
result.py        the verified result as a file that this machine has signed
page.py          one HTML page from verified results
commands.py      `hlogym leaderboard entry`, `verify` and `page`
ours.py          the first entries
"""
