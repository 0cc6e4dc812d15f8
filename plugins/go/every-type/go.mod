module every-type

go 1.24

require restitch v1.0.0

replace restitch => ../../sdk/go
