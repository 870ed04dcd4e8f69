"""What the processes say to each other: messages, parameters, configuration. Imports no sibling package."""
