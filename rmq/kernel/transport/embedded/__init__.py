"""Run the server of an `embedded:///dir` address, which is a private Redis of this user.

embedded            starts, shares and stops the server
server_supervisor   a small process that stops the server when the owner ends (the owner is the
                    process that started the server)
"""
