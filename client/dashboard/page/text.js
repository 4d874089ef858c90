// Numbers, times and names as people read them.

// protobuf's JSON leaves zeros out, and has int64, NaN and infinities as strings.
export const num = (value) => (value === undefined ? 0 : Number(value));

export const plain = (value, prefix) => (value || "UNSPECIFIED").replace(prefix, "");

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    ++unit;
  }
  return `${unit === 0 ? count : count.toFixed(1)} ${units[unit]}`;
}

export function figure(value) {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return Number.isInteger(value) ? String(value) : value.toPrecision(4);
}

export function seconds(value) {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
}

export function duration(ns) {
  if (ns < 1e3) return `${Math.round(ns)} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(1)} µs`;
  return ns < 1e9 ? `${(ns / 1e6).toFixed(1)} ms` : seconds(ns / 1e9);
}

const two = (value) => String(value).padStart(2, "0");

export function clock(unixMs) {
  const time = new Date(unixMs);
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} `;
  const today = new Date().toDateString() === time.toDateString();
  return (today ? "" : day) + [time.getHours(), time.getMinutes(), time.getSeconds()].map(two).join(":");
}
