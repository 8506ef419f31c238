"""Terminal and signals: text that is safe to print, progress output, Ctrl-C."""
