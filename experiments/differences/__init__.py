"""`hlogym diff`: in what two plans of a program differ, why, and what each difference is worth.

sides.py      the plans that are compared, with the reasons of the policies that made them
reasons.py    the reasons that a policy gives for its choices
kernels.py    the kernels of two plans by what they compute, and plans in which some of them are exchanged
finding.py    the differences, each with the plan in which it is taken back
measuring.py  what each is worth, by the measurer of the environments
command.py    the command, its table and its page
"""
