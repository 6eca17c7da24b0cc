package chart

// style applies to all pictures. An embedded image knows only the reader's preference, and not the colour
// of the page around it. So each picture has a background of its own, and is legible on any page. Some
// viewers support neither variables nor preferences, so all colours are written out, the light ones first.
const style = `
text { font-family: system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; font-size: 13px; fill: #1f2328; }
.paper { fill: #ffffff; stroke: #d1d9e0; }
.heading { font-size: 17px; font-weight: 600; }
.name { font-size: 14px; font-weight: 600; }
.muted { fill: #59636e; }
.small { font-size: 12px; fill: #59636e; }
.grid { stroke: #d1d9e0; stroke-width: 1; }
.axis { stroke: #818b98; stroke-width: 1; }
.rate { stroke: #1f2328; stroke-width: 1; stroke-dasharray: 2 4; }
.window { stroke: #bc4c00; stroke-width: 1.5; stroke-dasharray: 5 3; }
.offered { fill: #8c959f; }
.denied { fill: #ccd3da; }
.admitted { fill: #0969da; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.curve.a { stroke: #0969da; stroke-width: 3; }
.curve.b { stroke: #bc4c00; }
.curve.c { stroke: #1a7f37; }
.curve.d { stroke: #8250df; }
.mark { stroke: #ffffff; stroke-width: 1.5; }
.a:not(.curve) { fill: #0969da; }
.b:not(.curve) { fill: #bc4c00; }
.c:not(.curve) { fill: #1a7f37; }
.d:not(.curve) { fill: #8250df; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.paper { fill: #0d1117; stroke: #3d444d; }
.muted, .small { fill: #9198a1; }
.grid { stroke: #2a313a; }
.axis { stroke: #656c76; }
.rate { stroke: #e6edf3; }
.window { stroke: #f0883e; }
.offered { fill: #848d97; }
.denied { fill: #3d4752; }
.admitted { fill: #4493f8; }
.curve.a { stroke: #4493f8; }
.curve.b { stroke: #f0883e; }
.curve.c { stroke: #3fb950; }
.curve.d { stroke: #ab7df8; }
.mark { stroke: #0d1117; }
.a:not(.curve) { fill: #4493f8; }
.b:not(.curve) { fill: #f0883e; }
.c:not(.curve) { fill: #3fb950; }
.d:not(.curve) { fill: #ab7df8; }
}
`
