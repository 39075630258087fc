"""The dashboard: its pages, its sign-in, and the data and actions behind its pages.

Every read and write goes through what the API server and Jumpstarter's services use too.
"""
