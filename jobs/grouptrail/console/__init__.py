"""The terminal: text that is safe to print, progress, times as people write them, signals."""
