"""What stand-ins of perftest's programs have in common: a script's text, to be formatted once more."""

# A server takes one client and ends, as perftest's does; a client that comes too early cannot connect.
MEET = """
if sys.argv[-1] == str(port):
    with socket.create_server(("", port)) as listener:
        listener.accept()[0].close()
    sys.exit()
try:
    socket.create_connection((sys.argv[-1], port)).close()
except OSError:
    sys.exit(" Couldn't connect to " + sys.argv[-1])
"""
