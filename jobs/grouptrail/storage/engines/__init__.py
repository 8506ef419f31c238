"""The two engines that read and write the Delta tables, and the rule that chooses one.

`choice.choose` is the only place that decides. `DeltaRs` answers in milliseconds and needs no JVM; `Spark` takes any
number of rows and any store. Both do the same by the same names (`engine.Engine`).
"""
