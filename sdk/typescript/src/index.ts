/** A client of Waybill, and tools that run in your process. */
export { type Options, type RunOptions, Waybill } from './client.ts'
export { advice, type Code, isCode, TurnFailed, WaybillError } from './error.ts'
export type { Event, Watching } from './events.ts'
export type { Answer, Operation, Request, Schemas, Settings } from './http.ts'
export { operations } from './operations.ts'
export type { ServeOptions } from './serve.ts'
export { type Call, type FromSchema, type Tool, type ToolOptions, tool } from './tool.ts'
export type { Session, Turn, TurnWatching, WaitOptions } from './turn.ts'
