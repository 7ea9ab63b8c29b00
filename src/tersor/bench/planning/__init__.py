"""Plans from result rows, whatever site they are of: checks, tables, figures and blocks of pages."""
