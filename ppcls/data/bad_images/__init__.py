"""Bad images: lists, quarantine, bisection."""
