"""What people read: explanations and break reports."""

from bothways.report.explanation import Explanation

__all__ = ["Explanation"]
