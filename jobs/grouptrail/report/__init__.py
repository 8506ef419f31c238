"""HTML pages of a group and of a cluster that open offline: `*_rows` read, `layout` arranges, `page` writes."""
