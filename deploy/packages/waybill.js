#!/usr/bin/env node
// Starts the program of the package for this platform, passes signals on, and ends as it ends.
"use strict";
const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const name = `@waybill/${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/bin/waybill`);
} catch {
  console.error(`error: ${name} is not installed. Either there is no program for this platform, or npm was asked to leave out optional dependencies.`);
  process.exit(1);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`error: ${program} cannot be started: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
