"""Text and records of serving and load: traces, command lines, job scripts, verdicts.

The only input it reads are traces. Two modules, :mod:`.agent` and :mod:`.samples`, are also sent to the node
as they are: they use the standard library only.
"""
