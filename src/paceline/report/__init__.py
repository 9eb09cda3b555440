"""Shows records to people and to other programs: console, HTML, Markdown, CSV, JSON lines, PNG."""
