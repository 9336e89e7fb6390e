"""The benchmark: MirrorMaker 2 and Mirrorlake side by side, on the same brokers and the same records.

scenarios   what is varied, and how much of it
processes   what a tree of processes uses: CPU, memory, disk
delay       a line that takes its time, and loses no throughput by it
records     the records: made, compared, fed at a steady pace
contenders  MM2 at its defaults, MM2 tuned, Mirrorlake
stage       the clusters they run between
measure     one run, measured
results     many runs as medians with their spread, ratios, goals
tracking    MLflow
plots       pictures
page        the results as Markdown
sizing      what a load needs, from measured coefficients
benchmark   all of it, in order
commands    `mirrorlake bench`, `mirrorlake size`
"""
