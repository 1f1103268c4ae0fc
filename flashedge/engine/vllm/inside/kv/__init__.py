"""The KV memory inside an engine process: quota, pages, and the copy that waits in host memory."""
