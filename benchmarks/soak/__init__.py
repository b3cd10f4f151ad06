"""All features at half speed for an hour, watched for leaks: `python -m benchmarks soak`, or `make soak`.

command     the command line, and the run
service     the programs: workers, the publisher with an operator, and HTTP clients
watch       reads what processes and the database hold
judge       decides from a series whether it is level
"""
