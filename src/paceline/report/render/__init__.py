"""What shows a document: on a terminal, as Markdown, as HTML, as a picture."""
