"""The steps of a checkpoint, one file each, callable from any process, any number of times.

    1 trigger          `trigger` (`to_fence`, `to_open`), after `unfinished`: what earlier decisions started
    2 append           by tasks: `changelog` and `recoverable`, on the driver `checkpoint.batch`
    3 persist          `persist`: what tasks reported, against the store
    4 record           `record`: the manifest
    5 confirm          `confirm` (`to_complete`): the commit point
    1 to 6             `adopt`: of a checkpoint whose state is another job's
    6 compose-commit   `compose_commit` (`to_commit`); of one file, `recoverable.commit`
    7 clean up         `clean_up` (`to_subsume`): the act; `garbage`: the plan; `references`: what checkpoints
                       need; `clean_up_mark`: how far the last one saw

Each is a function of a `Job`. In brackets is its rule in `timeline.decisions`, which `Timeline.decide` asks
for the next record. Owns the order within a step. Does not own the rules, or the race for a slot
(`timeline`).

A step may be killed at any request and run again by another process, concurrently with a zombie of itself,
with the same outcome: its record goes into the slot after the last one that it has read, or nowhere.

So a process that has just read the timeline, or written its last record, does not read it again to decide:

* To act on what was seen is safe: if it was stale, the slot is taken, and the rule is asked again. What a
  step does before its record (publish, resolve, retract) is safe for a zombie, and so for a stale view.
* To refuse, or to say that there is nothing to do, is not: that is only ever said of a tail that was read in
  the same step.
"""
