"""Looking at a job without changing it: is a checkpoint undamaged (`verify`), is the job in order (`audit`).

`integrity` is the check of one object. Does not own what to do about a finding.
"""
