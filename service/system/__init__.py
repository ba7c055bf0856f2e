"""The machine, the installation and its environment, the log; what a process is set to."""
