"""What user code defines: functions, attributes, classes, partials, namespaces."""
