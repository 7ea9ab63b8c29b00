"""Plans from the result rows of any site: checks, tables, figures and page blocks."""
