package wire

func (r *Request) members() []member {
	return []member{
		{"id", &r.ID, true}, {"op", &r.Op, true}, {"ctr", &r.Container, false}, {"timeout", &r.Timeout, false},
		{"version", &r.Version, false}, {"subscribe", &r.Subscribe, false}, {"create", &r.Create, false},
		{"log", &r.Log, false},
		{"signal", &r.Signal, false}, {"process", &r.Process, false}, {"console", &r.Console, false},
		{"cancels", &r.Cancels, false},
	}
}

func (b *Bundle) members() []member {
	return []member{
		{"runtime", &b.Runtime, true}, {"args", &b.Args, false}, {"tty", &b.Terminal, false}, {"stdin", &b.Stdin, false},
		{"stdinOnce", &b.StdinOnce, false}, {"cgroups", &b.Cgroups, false}, {"log", &b.Log, false},
		{"started", &b.Started, false}, {"owner", &b.Owner, false}, {"stdinClosed", &b.StdinClosed, false},
		{"sandbox", &b.Sandbox, false}, {"init", &b.Init, false}, {"tracked", &b.Tracked, false},
	}
}

func (l *Log) members() []member {
	return []member{{"dir", &l.Dir, true}, {"path", &l.Path, true}, {"rate", &l.Rate, false}, {"burst", &l.Burst, false}}
}

func (p *Process) members() []member {
	return []member{{"pid", &p.PID, true}, {"start", &p.StartTime, true}}
}

func (e *Exit) members() []member {
	return append(e.Process.members(), []member{
		{"code", &e.Code, true}, {"signal", &e.Signal, false}, {"oom", &e.OOMKilled, false},
		{"startedAt", &e.StartedAt, false},
		{"finishedAt", &e.FinishedAt, true}, {"unknown", &e.Unknown, false}, {"draining", &e.Draining, false},
	}...)
}

func (c *Container) members() []member {
	return []member{
		{"id", &c.ID, true}, {"state", &c.State, true}, {"process", &c.Process, true}, {"tty", &c.Terminal, false},
		{"stdinOnce", &c.StdinOnce, false}, {"started", &c.Started, false}, {"exit", &c.Exit, false},
		{"dropped", &c.Dropped, false},
	}
}

func (d *Dropped) members() []member {
	return []member{{"lines", &d.Lines, true}, {"bytes", &d.Bytes, true}}
}

func (r *Reply) members() []member {
	return []member{
		{"id", &r.ID, false}, {"error", &r.Error, false}, {"errno", &r.Errno, false}, {"path", &r.Path, false},
		{"version", &r.Version, false}, {"pid", &r.PID, false},
		{"containers", &r.Containers, false}, {"process", &r.Process, false}, {"code", &r.Code, false},
		{"timedOut", &r.TimedOut, false}, {"full", &r.Full, false}, {"ctr", &r.Container, false}, {"exit", &r.Exit, false},
		{"dropped", &r.Dropped, false},
	}
}

func (o *Owner) members() []member {
	return []member{{"uid", &o.UID, true}, {"gid", &o.GID, true}}
}
