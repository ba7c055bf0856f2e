"""The served models of a process: start, names, choice by a request, and shared state."""
