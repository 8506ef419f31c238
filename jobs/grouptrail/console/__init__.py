"""The terminal and the process's signals: text that is safe to print, progress, Ctrl-C."""
