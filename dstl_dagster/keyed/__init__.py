"""Keyed state at a checkpoint: what tasks report, the manifest that names it, and how rows are read back.

Owns the documents of a checkpoint (reports, manifest) and reading and writing state by them. Does not own
whether a checkpoint counts (`timeline`), nor the steps that make one (`checkpoint`).
"""
