module restitch

go 1.24
