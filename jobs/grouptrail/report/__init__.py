"""Pictures of the history: one HTML file each that opens offline. `rows` reads, `layout` arranges, `page` writes."""
