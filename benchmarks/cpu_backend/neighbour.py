"""placeholder"""
def measure(quick):
    return iter(())
