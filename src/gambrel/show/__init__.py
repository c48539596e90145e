"""What people see: charts of results. Every module imports its heavy libraries inside its functions."""
