"""The queries of pages: each gets an Ask and returns one dict, which the JSON is and the HTML shows."""
