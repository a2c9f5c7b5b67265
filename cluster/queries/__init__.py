"""Query tasks: questions to workers about a run, asked and answered while a client waits."""
