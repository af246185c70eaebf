"""What `import siliconloom` offers: questions to machines, and their results as tables, pages and plots."""
